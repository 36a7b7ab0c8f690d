"""What handlers and faults have to agree on."""

TTR_SECONDS = 4  # of every topic here: what a killed process held is free again so soon
