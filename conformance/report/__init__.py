"""Results, made into something people look at; each form a module, imported by who asks for it."""
