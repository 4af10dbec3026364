"""The fashion study of several seeds as scored runs."""
