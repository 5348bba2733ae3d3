"""The one exception that is meant for the user."""


class UserError(Exception):
    """Something the user can mend: its message is one line with the cause and the remedy."""
