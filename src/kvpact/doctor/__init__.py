"""The doctor: examines any engine, and says which clause of the context contract it breaks, where, why, and how to mend it."""
