"""What people configure: settings from the environment, cluster files, the configured policy."""
