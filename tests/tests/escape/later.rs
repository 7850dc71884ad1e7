//! What runs when the service user or an operator later works in the workspace: every proof is a git command of
//! the service user, or a file that its editor or shell would run.

use crate::attack::{
    Attack,
    Layer::{ReadOnly, Scan},
    tools,
};

const LATER: &str = "what a person later runs";

#[rustfmt::skip]
pub const TABLE: &[Attack] = &[
    tools(LATER, "a hook is planted", "hook(WS + '/.git', MARK)", &[ReadOnly]).fresh().proof("git_runs(WS)"),
    tools(LATER, "a hook that is there is changed", "open(WS + '/.git/hooks/pre-commit', 'a').write(f'\\ntouch {MARK}\\n')", &[ReadOnly]).fresh().proof("git_runs(WS)"),
    tools(LATER, "the configuration names a program", "config(WS + '/.git', MARK)", &[ReadOnly]).fresh().proof("git_runs(WS)"),
    tools(LATER, "the configuration is replaced by a rename", "shutil.copy(WS + '/.git/config', WS + '/new'); config(WS, MARK, 'new'); os.rename(WS + '/new', WS + '/.git/config')", &[ReadOnly]).fresh().proof("git_runs(WS)"),
    tools(LATER, "the hooks are moved aside and others planted", "os.rename(WS + '/.git/hooks', WS + '/.git/aside'); os.mkdir(WS + '/.git/hooks'); hook(WS + '/.git', MARK)", &[ReadOnly]).fresh().proof("git_runs(WS)"),
    tools(LATER, ".git is moved aside and another planted", "os.rename(WS + '/.git', WS + '/aside'); sh('cp -r aside .git'); hook(WS + '/.git', MARK)", &[ReadOnly]).fresh().proof("git_runs(WS)"),
    tools(LATER, ".git is swapped with another directory", "sh('cp -r .git other'); hook(WS + '/other', MARK); call(316, -100, (WS + '/other').encode(), -100, (WS + '/.git').encode(), 2)", &[ReadOnly]).fresh().proof("git_runs(WS)"),
    tools(LATER, ".git is removed and a link put there", "sh('cp -r .git other'); hook(WS + '/other', MARK); shutil.rmtree(WS + '/.git'); os.symlink('other', WS + '/.git')", &[ReadOnly]).fresh().proof("git_runs(WS)"),
    tools(LATER, "an included file names a program", "config(WS + '/conf', MARK, 'shared.cfg')", &[ReadOnly]).fresh().proof("git_runs(WS)"),
    tools(LATER, "the parent of an included file is moved aside and another planted", "os.rename(WS + '/conf', WS + '/conf2'); os.mkdir(WS + '/conf'); config(WS + '/conf', MARK, 'shared.cfg')", &[ReadOnly]).fresh().proof("git_runs(WS)"),
    tools(LATER, "attributes of the repository call a filter", "open(WS + '/.git/info/attributes', 'w').write('* filter=x\\n')", &[ReadOnly]).fresh().proof("open(WS + '/.git/info/attributes').read().index('filter')"),
    tools(LATER, "the configuration of a worktree names a program", "config(WS + '/.git', MARK, 'config.worktree')", &[Scan]).fresh().proof("git_runs(WS)"),
    tools(LATER, "a nested repository with a hook", "nested(D); hook(D + '/.git', MARK)", &[Scan]).fresh().proof("git_runs(D)"),
    tools(LATER, "a nested repository that names a monitor", "nested(D); config(D + '/.git', MARK)", &[Scan]).fresh().proof("git_runs(D)"),
    tools(LATER, "a nested repository whose filter runs", "nested(D); open(D + '/.git/config', 'a').write(f'[filter \"x\"]\\nclean = touch {MARK}; cat\\n'); open(D + '/.gitattributes', 'w').write('* filter=x\\n'); open(D + '/f', 'w').write('1')", &[Scan]).fresh().proof("git_runs(D, 'add', 'f')"),
    tools(LATER, "a nested repository whose alias runs", "nested(D); open(D + '/.git/config', 'a').write(f'[alias]\\nlg = !touch {MARK}\\n')", &[Scan]).fresh().proof("git_runs(D, 'lg')"),
    tools(LATER, "a nested repository with hooks elsewhere", "nested(D); os.mkdir(D + '/hooks'); hook(D, MARK); open(D + '/.git/config', 'a').write('[core]\\nhooksPath = hooks\\n')", &[Scan]).fresh().proof("git_runs(D)"),
    tools(LATER, "a gitdir file leads to a prepared repository", "nested(D); config(D + '/.git', MARK); os.rename(D + '/.git', D + '/real'); open(D + '/.git', 'w').write('gitdir: real\\n')", &[Scan]).fresh().proof("git_runs(D)"),
    tools(LATER, "a link leads to a prepared repository", "nested(D); config(D + '/.git', MARK); os.rename(D + '/.git', D + '/real'); os.symlink('real', D + '/.git')", &[Scan]).fresh().proof("git_runs(D)"),
    tools(LATER, "a bare repository lies about", "sh(f'git init -q --bare {D}'); config(D, MARK); open(D + '/config', 'a').write(f'[core]\\nbare = false\\nworktree = {D}\\n')", &[Scan]).fresh().proof("git_runs(D)"),
    tools(LATER, "a clone brings a hook by a template", "os.makedirs(D + '/t/hooks'); hook(D + '/t', MARK); nested(D + '/s'); sh(f'git -c init.templateDir={D}/t clone -q {D}/s {D}/c')", &[Scan]).fresh().proof("git_runs(D + '/c')"),
    tools(LATER, "a repository is prepared elsewhere and moved in at the end", "os.mkdir(WS + '/x' + N); nested(WS + '/x' + N + '/y'); hook(WS + '/x' + N + '/y/.git', MARK); os.rename(WS + '/x' + N + '/y', D)", &[Scan]).fresh().proof("git_runs(D)"),
    tools(LATER, "git writes its message through a link", "os.path.lexists(WS + '/.git/COMMIT_EDITMSG') and os.unlink(WS + '/.git/COMMIT_EDITMSG'); os.symlink(MARK, WS + '/.git/COMMIT_EDITMSG')", &[Scan]).fresh().proof("git_runs(WS)"),
    tools(LATER, "git writes its log through a link", "nested(D); shutil.rmtree(D + '/.git/logs', True); os.mkdir(D + '/.git/logs'); os.symlink(MARK, D + '/.git/logs/HEAD')", &[Scan]).fresh().proof("git_runs(D)"),
    tools(LATER, "git writes what it fetched through a link", "nested(D); os.symlink(MARK, D + '/.git/FETCH_HEAD')", &[Scan]).fresh().proof("git_runs(D, 'fetch', '.')"),
    tools(LATER, "a branch names a helper as its remote", "nested(D); open(D + '/.git/config', 'a').write('[branch \"m\"]\\nremote = ext::sh -c x\\n')", &[Scan]).fresh().proof("open(D + '/.git/config').read().index('ext::')"),
    tools(LATER, "a git directory in other letters", "os.mkdir(D); open(D + '/.GIT', 'w').write('gitdir: /tmp/x\\n')", &[Scan]).fresh().proof("os.stat(D + '/.GIT')"),
    tools(LATER, "an editor's directory in other letters", "os.makedirs(D + '/.VSCode')", &[Scan]).fresh().proof("os.stat(D + '/.VSCode')"),
    tools(LATER, "an editor's directory with an invisible letter", "os.makedirs(D + '/.vs\\u200bcode')", &[Scan]).fresh().proof("os.stat(D + '/.vs\\u200bcode')"),
    tools(LATER, "settings of another version control are planted", "os.makedirs(D + '/.jj/repo'); open(D + '/.jj/repo/config.toml', 'w').write('x')", &[Scan]).fresh().proof("os.stat(D + '/.jj/repo/config.toml')"),
    tools(LATER, "a workspace file of an editor is planted", "open(WS + '/x.code-workspace', 'w').write('{}')", &[Scan]).fresh().proof("os.stat(WS + '/x.code-workspace')"),
    tools(LATER, "what a shell trusts by its path is planted", "open(WS + '/mise.toml', 'w').write('[hooks]')", &[Scan]).fresh().proof("os.stat(WS + '/mise.toml')"),
    tools(LATER, "a language server of an editor is planted", "os.mkdir(WS + '/.helix'); open(WS + '/.helix/languages.toml', 'w').write('x')", &[Scan]).fresh().proof("os.stat(WS + '/.helix/languages.toml')"),
    tools(LATER, "an editor's directory is planted", "os.mkdir(WS + '/.zed'); open(WS + '/.zed/settings.json', 'w').write('{}')", &[Scan]).fresh().proof("os.stat(WS + '/.zed/settings.json')"),
    tools(LATER, "an editor's tasks are changed", "open(WS + '/.vscode/tasks.json', 'w').write('{\"evil\": 1}')", &[ReadOnly]).fresh().proof("open(WS + '/.vscode/tasks.json').read().index('evil')"),
    tools(LATER, "an editor's directory is moved aside", "os.rename(WS + '/.vscode', WS + '/vs')", &[ReadOnly]).fresh().proof("os.stat(WS + '/vs')"),
    tools(LATER, "an editor's directory is planted below", "os.makedirs(D + '/.vscode'); open(D + '/.vscode/tasks.json', 'w').write('{}')", &[Scan]).fresh().proof("os.stat(D + '/.vscode/tasks.json')"),
    tools(LATER, "another editor's directory is planted", "os.makedirs(WS + '/.idea'); open(WS + '/.idea/workspace.xml', 'w').write('x')", &[Scan]).fresh().proof("os.stat(WS + '/.idea/workspace.xml')"),
    tools(LATER, "a shell's environment is planted", "open(WS + '/.envrc', 'w').write('x')", &[Scan]).fresh().proof("os.stat(WS + '/.envrc')"),
    tools(LATER, "an editor's start-up file is planted", "open(WS + '/.exrc', 'w').write('x')", &[Scan]).fresh().proof("os.stat(WS + '/.exrc')"),
    tools(LATER, "an agent's servers are planted", "open(WS + '/.mcp.json', 'w').write('{}')", &[Scan]).fresh().proof("os.stat(WS + '/.mcp.json')"),
    tools(LATER, "an agent's settings are planted", "os.mkdir(WS + '/.claude'); open(WS + '/.claude/settings.json', 'w').write('{}')", &[Scan]).fresh().proof("os.stat(WS + '/.claude/settings.json')"),
    tools(LATER, "a development container is planted", "os.mkdir(WS + '/.devcontainer'); open(WS + '/.devcontainer/devcontainer.json', 'w').write('{}')", &[Scan]).fresh().proof("os.stat(WS + '/.devcontainer/devcontainer.json')"),
    tools(LATER, "hooks of a package manager are planted", "os.mkdir(WS + '/.husky'); open(WS + '/.husky/pre-commit', 'w').write('x')", &[Scan]).fresh().proof("os.stat(WS + '/.husky/pre-commit')"),
];
