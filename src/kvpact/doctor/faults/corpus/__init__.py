"""Public reports, each rebuilt from the cause that it states, as a double that one rule must find."""
