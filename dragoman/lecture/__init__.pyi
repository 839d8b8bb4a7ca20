from dragoman.lecture.making import Lecture as Lecture
from dragoman.lecture.making import make_lecture as make_lecture
from dragoman.lecture.options import LectureOptions as LectureOptions
from dragoman.lecture.table import DrawnFigure as DrawnFigure
from dragoman.lecture.topics import TOPICS as TOPICS
