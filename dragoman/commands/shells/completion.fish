# Completion of dragoman for fish:  dragoman completion fish > ~/.config/fish/completions/dragoman.fish
function __dragoman_completion
    set -l answers (DRAGOMAN_COMPLETE=(commandline -cp) command dragoman 2>/dev/null)
    if test (count $answers) -gt 0
        printf '%s\n' $answers
        return
    end
    # No answer: files, also behind the = of a setting.
    set -l word (commandline -ct)
    set -l prefix (string match -r '^.*=' -- $word)
    for path in (__fish_complete_path (string replace -r '^.*=' '' -- $word))
        echo $prefix$path
    end
end
complete --no-files --command dragoman --arguments '(__dragoman_completion)'
