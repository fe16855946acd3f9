"""Training of the bundled target model and its EAGLE-3 head, from named permissive text to exported weights."""
