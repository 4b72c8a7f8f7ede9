"""What several test files share; ``ranks/`` holds programs that tests start as ranks."""
