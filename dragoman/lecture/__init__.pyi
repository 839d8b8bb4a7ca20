from dragoman.lecture.toys import TOYS as TOYS
from dragoman.lecture.toys import write_toys as write_toys
from dragoman.lecture.worked_numbers import WORKED as WORKED
from dragoman.lecture.worked_numbers import WorkedOptions as WorkedOptions
from dragoman.lecture.worked_numbers import worked as worked
from dragoman.lecture.worked_numbers import worked_names as worked_names
from dragoman.lecture.worked_numbers import worked_settings as worked_settings
