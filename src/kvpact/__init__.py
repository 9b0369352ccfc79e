"""kvpact: the KV cache is a contract about context, and the contract holds."""
