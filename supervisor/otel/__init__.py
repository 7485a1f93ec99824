"""What a run tells, sent to an OpenTelemetry collector by a child of the daemon: metrics, and one trace an incident."""
