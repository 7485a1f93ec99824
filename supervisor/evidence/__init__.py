"""What a person needs in the morning, kept at the moment of the verdict: one bundle an incident."""
