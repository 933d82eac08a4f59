"""What a user asks for: settings, methods, what makes two runs the same, and the objects that they become."""
