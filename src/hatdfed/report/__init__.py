"""Tables, figures and documents about runs."""
