"""What can be tried on SGLang and vLLM: data with versions and gates (*.yaml), and the code that reads it."""
