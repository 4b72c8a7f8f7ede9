"""Tables and plots as a page, pictures, files and terminal output."""
