"""What detection, relaunch and the daemon's own footprint cost: measured beside a peer, printed, never a test."""
