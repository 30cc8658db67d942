"""The disk under the log: files, syncing, threads that wait for it, reserved space."""
