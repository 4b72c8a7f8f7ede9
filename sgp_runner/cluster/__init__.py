"""The machines that a run imitates: their times, their network, and what goes wrong with them."""
