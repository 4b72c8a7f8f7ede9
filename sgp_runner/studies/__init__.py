"""Studies: a question, the arms that answer it, and the rules that make the answer defensible.

``study_file`` reads and checks the file of a study, ``arms`` turns it into runs, ``tuning`` finds
the settings of each arm, ``conduct`` executes the runs, ``statistics`` and ``power`` test
differences, ``comparisons`` applies both to the runs, and ``study_page`` writes the tables and the
page.
"""
