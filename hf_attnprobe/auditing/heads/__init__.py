"""The heads of a model beside each other: their numbers, tables and sentences."""
