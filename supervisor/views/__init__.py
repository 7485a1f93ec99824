"""What people are shown: status, belief, incidents, reports. Pure, or reading only."""
