from dragoman.models.heads.decoder_head import teacher_inputs as teacher_inputs
from dragoman.models.heads.softmax import full_precision as full_precision
from dragoman.models.heads.softmax import log_probabilities as log_probabilities
