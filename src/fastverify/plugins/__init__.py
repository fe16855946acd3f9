"""Entry points that put fastverify's all-reduce into servers that run already: SGLang and vLLM."""
