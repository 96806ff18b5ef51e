"""Word lists of the text tasks: names for controls, and words of a format or filler."""

from __future__ import annotations


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(text.split())


# Made-up and rare names of many lengths, so that a control is about as long as its secret.
CONTROL_NAMES = words_of(
    "Ife Noa Pia Uwe Zev Anke Bodo Dirk Elke Gero Hedy Imke Kaia Mael Aldis Brigg Corra Dagny "
    "Farid Greer Hanno Jarek Ansgar Bertil Corwin Dorrit Eskild Gudrun Ingvar Joslyn Albrook "
    "Brannon Castell Dunmore Fenwick Garside Halvard Isidora Ashworth Birchall Coverley Danforth "
    "Ellinger Fairholm Hartwell Lindqvist Attenbury Chatterly Farnworth Grosvenor Kettleman "
    "Abernathie Birkenhall Carrowmore Dalrympole Nightengale Butterworth Etherington Featherston "
    "Hathersmith Willoughbie"
)

# Words of letters, forms of address and headers: a control shares them with its secret, as they
# belong to the format.
FORMAT_WORDS = frozenset(
    words_of(
        "am and attached bcc box by cc cell com company corp date dear dr email fax floor from "
        "forwarded fw fwd house http inc llc ltd mail message mobile mr mrs ms net office on org "
        "original phone pm po re regards room sent sincerely st street subject suite tel telephone "
        "thank thanks the to www january february march april may june july august september "
        "october november december monday tuesday wednesday thursday friday saturday sunday"
    )
)
