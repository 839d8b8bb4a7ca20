from dragoman.data.cleaning.cleaner import Report as Report
from dragoman.data.cleaning.cleaner import clean as clean
from dragoman.data.cleaning.cleaner import filter_pairs as filter_pairs
from dragoman.data.cleaning.rules import CleanOptions as CleanOptions
from dragoman.data.cleaning.rules import scripts_of as scripts_of
