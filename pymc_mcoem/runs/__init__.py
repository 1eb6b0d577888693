"""What every run needs: an executor, files, checkpoints and settings."""
