"""A study from its file to its page."""

from __future__ import annotations

from sgp_runner.studies.arms import RunMaker, check_arms
from sgp_runner.studies.conduct import conduct
from sgp_runner.studies.study_file import StudyFile
from sgp_runner.studies.study_page import StudyPage, write_study
from sgp_runner.studies.study_record import set_down
from sgp_runner.utils.lock import locked


def perform_study(study: StudyFile) -> StudyPage:
    """Check the study, set it down, make its runs, and write its page.

    Raises ConfigError, before anything is written, for a study that cannot work.
    """
    maker = RunMaker(study)
    spaces = check_arms(maker)
    with locked(study.folder):
        record = set_down(study)
        return write_study(maker, conduct(maker, spaces), record)
