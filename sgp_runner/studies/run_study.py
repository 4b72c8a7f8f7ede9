"""Running a study, from its file to its page and archive."""

from __future__ import annotations

from sgp_runner.jobs.job_pool import run_all
from sgp_runner.studies.arms import RunAll, RunMaker, check_arms
from sgp_runner.studies.conduct import conduct
from sgp_runner.studies.study_archive import write_archive
from sgp_runner.studies.study_file import StudyFile
from sgp_runner.studies.study_page import StudyPage, findings_of, write_study
from sgp_runner.studies.study_record import as_set_down, set_down
from sgp_runner.utils.lock import locked


def run_study(study: StudyFile, run_all: RunAll = run_all) -> StudyPage:
    """Check and record the study, execute its runs, and write its page and archive.

    run_all: runs the jobs that are due

    Raises ConfigError for an invalid study before anything is written.
    """
    maker = RunMaker(study, run_all)
    spaces = check_arms(maker)
    with locked(study.folder):
        record = set_down(study)
        maker.study = as_set_down(study, record)
        page = write_study(maker, findings_of(maker, conduct(maker, spaces), record), record)
        write_archive(maker, page.answer)
        return page
