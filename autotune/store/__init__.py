"""What studies leave behind, on disk the moment it happens.

Nothing is re-exported: the folders' names are read by commands that must not wait for SQLAlchemy.
"""
