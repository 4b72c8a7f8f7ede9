"""What an algorithm sees: worker, communication, scheduler, parameters and optimizer."""
