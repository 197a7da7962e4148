"""Images by search: the engine of gradient matching."""
