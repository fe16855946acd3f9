"""From named permissive packages to a tokenizer, token files, held-out text and a manifest. No torch in here."""
