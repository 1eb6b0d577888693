"""The parts of every run: an executor, files, checkpoints and settings."""
