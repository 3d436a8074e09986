"""What the project promises in numbers, measured."""
