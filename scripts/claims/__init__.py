"""Claims of the papers, tested here: each with its runs, its statistics and its verdict."""
