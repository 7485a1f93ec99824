"""What has no opinion of a run: errors, secrets, logs, sockets, files that may be trusted, one HTTP client."""
