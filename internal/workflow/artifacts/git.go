package artifacts

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"golang.org/x/crypto/ssh"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// gitStore loads a checkout of a Git repository. It does not need the git program.
type gitStore struct{ at *execapi.Git }

func (s gitStore) load(ctx context.Context, to string) error {
	if err := s.clone(ctx, to); err != nil {
		return fmt.Errorf("git %s: %w", shownRepo(s.at.Repo), err)
	}
	return nil
}

// shownRepo returns a repository's address without its password.
func shownRepo(repo string) string {
	if u, err := url.Parse(repo); err == nil {
		return u.Redacted()
	}
	return repo
}

func (s gitStore) clone(ctx context.Context, to string) error {
	auth, err := s.auth()
	if err != nil {
		return err
	}
	options := &git.CloneOptions{
		URL: s.at.Repo, Auth: auth, Depth: s.at.Depth, SingleBranch: s.at.Single, InsecureSkipTLS: s.at.NoTLS, Tags: git.AllTags,
	}
	if s.at.Branch != "" {
		options.ReferenceName = plumbing.NewBranchReferenceName(s.at.Branch)
	}
	if s.at.Single {
		options.Tags = git.NoTags
	}
	repo, err := git.PlainCloneContext(ctx, to, false, options)
	if err != nil {
		return err
	}
	if len(s.at.Fetch) > 0 {
		specs := make([]config.RefSpec, len(s.at.Fetch))
		for i, f := range s.at.Fetch {
			specs[i] = config.RefSpec(f)
			if err := specs[i].Validate(); err != nil {
				return fmt.Errorf("fetch '%s': %w", f, err)
			}
		}
		err := repo.FetchContext(ctx, &git.FetchOptions{Auth: auth, RefSpecs: specs, Depth: s.at.Depth, InsecureSkipTLS: s.at.NoTLS, Force: true})
		if err != nil && !errors.Is(err, git.NoErrAlreadyUpToDate) {
			return fmt.Errorf("fetch: %w", err)
		}
	}
	tree, err := repo.Worktree()
	if err != nil {
		return err
	}
	if s.at.Revision != "" {
		commit, err := resolve(repo, s.at.Revision)
		if err != nil {
			return fmt.Errorf("revision '%s': %w", s.at.Revision, err)
		}
		if err := tree.Checkout(&git.CheckoutOptions{Hash: *commit, Force: true}); err != nil {
			return fmt.Errorf("revision '%s': %w", s.at.Revision, err)
		}
	}
	if !s.at.Submodules {
		return nil
	}
	modules, err := tree.Submodules()
	if err != nil {
		return err
	}
	return modules.UpdateContext(ctx, &git.SubmoduleUpdateOptions{Init: true, RecurseSubmodules: git.DefaultSubmoduleRecursionDepth, Auth: auth})
}

// resolve returns the commit that a hash, a tag or a branch of the origin names.
func resolve(repo *git.Repository, revision string) (*plumbing.Hash, error) {
	commit, err := repo.ResolveRevision(plumbing.Revision(revision))
	if err != nil {
		if remote, err := repo.ResolveRevision(plumbing.Revision("refs/remotes/origin/" + revision)); err == nil {
			return remote, nil
		}
	}
	return commit, err
}

func (s gitStore) auth() (transport.AuthMethod, error) {
	login, err := secrets(s.at.Username, s.at.Password, s.at.SSHKey)
	if err != nil {
		return nil, err
	}
	user, password, key := login[0], login[1], login[2]
	if s.at.SSHKey != "" {
		account := "git"
		if endpoint, err := transport.NewEndpoint(s.at.Repo); err == nil && endpoint.User != "" {
			account = endpoint.User
		}
		auth, err := gitssh.NewPublicKeys(account, []byte(key+"\n"), "")
		if err != nil {
			return nil, fmt.Errorf("sshPrivateKeySecret: %w", err)
		}
		if s.at.NoHostKey {
			auth.HostKeyCallback = ssh.InsecureIgnoreHostKey() //nolint:gosec // the manifest asks for it
		}
		return auth, nil
	}
	if user == "" && password == "" || !strings.HasPrefix(s.at.Repo, "http") {
		return nil, nil
	}
	return &githttp.BasicAuth{Username: user, Password: password}, nil
}

func (s gitStore) save(context.Context, source) error { return errors.New("git: nothing can be saved") }
func (s gitStore) remove(context.Context) error       { return nil }
