from dragoman.data.cleaning.cleaner import Report as Report
from dragoman.data.cleaning.cleaner import clean as clean
from dragoman.data.cleaning.cleaner import judge as judge
from dragoman.data.cleaning.rules import CleanOptions as CleanOptions
from dragoman.data.cleaning.rules import Profile as Profile
from dragoman.data.cleaning.rules import Rule as Rule
from dragoman.data.cleaning.rules import Settings as Settings
from dragoman.data.cleaning.rules import chosen_rules as chosen_rules
