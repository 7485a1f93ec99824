"""The protocol of a supervised job, and what jobs of different trainers share."""
