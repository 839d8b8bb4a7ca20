from dragoman.web.page import asset as asset
from dragoman.web.page import build_page as build_page
from dragoman.web.page import bundle as bundle
from dragoman.web.page import json_for_html as json_for_html
from dragoman.web.page import modules_of as modules_of
from dragoman.web.page import page_data as page_data
from dragoman.web.page import plain as plain
from dragoman.web.page import security_policy as security_policy
