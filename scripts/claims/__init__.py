"""Claims of the papers, tested again: each with its runs, its statistics and its verdict."""
