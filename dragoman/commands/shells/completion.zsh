#compdef dragoman
# Completion of dragoman for zsh. After compinit in ~/.zshrc:  eval "$(dragoman completion zsh)"
_dragoman_completion() {
    local answer value help
    local -a ended open shown_ended shown_open
    while IFS=$'\t' read -r value help; do
        [[ -n $value ]] || continue
        [[ -n $help ]] && help="  -- $help"
        if [[ $value == *[=./] ]]; then
            open+=("$value") shown_open+=("$value$help")
        else
            ended+=("$value") shown_ended+=("$value$help")
        fi
    done < <(DRAGOMAN_COMPLETE="${(j: :)words[1,CURRENT]}" ${(Q)words[1]} 2>/dev/null)
    if (( ! ${#ended} && ! ${#open} )); then
        compset -P '*='
        _files
        return
    fi
    compadd -Q -V values -S '' -l -d shown_open -a open
    compadd -Q -V values -l -d shown_ended -a ended
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _dragoman_completion "$@"
else
    compdef _dragoman_completion dragoman
fi
