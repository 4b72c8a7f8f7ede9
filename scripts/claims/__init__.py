"""What the papers say, asked again here: each claim with its runs, its statistics and its verdict."""
