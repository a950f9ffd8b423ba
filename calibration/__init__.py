"""How often the verdict is wrong on models of known truth; fills the table that the wheel ships."""
