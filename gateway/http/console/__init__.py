"""What the console's page is made of and what it is told: its files, and the one event stream."""
