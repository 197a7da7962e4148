"""Images in closed form: networks run backwards, layer by layer."""
