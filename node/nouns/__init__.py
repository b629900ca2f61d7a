"""What operators look at and change, each noun described once: its rows, and the acts on it."""
