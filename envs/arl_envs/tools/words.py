"""The short names of people, places and things."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST = _words("""
    Ann Ben Cleo Dan Eva Finn Gus Hana Ivo Jane Kira Leo Mia Nora Omar Pia Rui Sam Tess Uma
    Vera Will Yara Zoe Amir Bea Carl Dora Ella Fred Gina Hugo Iris Jack Karl Lina Max Nils
    Olga Paul
""")
LAST = _words("""
    Abel Berg Cruz Dahl Engel Frank Gold Hill Ito Jung King Lind Moss Nash Ortiz Park Quinn
    Rossi Stein Tran Ueda Vogel Wolf Young Zhang Adler Brown Costa Diaz Evans Fox Grant Haas
    Iqbal Jones Klein Lopez Meyer Novak Olsen
""")
CITIES = _words("""
    Rome Oslo Lima Cairo Paris Quito Delhi Tokyo Accra Minsk Riga Seoul Turin Porto Malmo Basel
""")
PRODUCTS = _words("""
    lamp desk chair shelf mirror carpet kettle toaster blender clock radio camera tent helmet
    guitar drum printer monitor keyboard heater
""")
SUBJECTS = ("broken lid", "late parcel", "wrong color", "missing part", "lost invoice", "bad smell")
