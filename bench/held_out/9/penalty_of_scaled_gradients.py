"""A Wasserstein GAN with gradient penalty in float16 autocast. FAULT from step 0 on: the slope is taken of scaler.scale(score) and never unscaled, so the
penalty asks that the scaled slope be one: it is 1e8 at first, gradients overflow, steps are skipped and the scale falls until it is small enough; the
critic then has a slope of 1/32, and the generator learns nothing.
Without Rangewatch: loss NaN at step 0, 9e7 at step 1, 1.5 at step 20; scale 65536 to 32; without the scaling the scale stays between 8192 and 16384.
Report: pytorch/pytorch#25081 (the penalty must be made of unscaled gradients), tensorflow/tensorflow#48662 (the scale falls to 1 with a gradient penalty),
lucidrains/stylegan2-pytorch#100 (the scale falls and falls).
Cause: loss_scale. Step: 0 to 20. Right: scale / unscale / GradScaler. Wrong: mask, data order, bfloat16."""
EXPECT = {"cause": ["loss_scale"], "step": [0, 60], "place": None, "rank": 0,
          "wrong": ["attention mask", "shuffl", "bfloat16"],
          "right": "scal|GradScaler|unscale|skip|overflow"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(818); torch.set_num_threads(1)


def mlp(inward, outward):
    return nn.Sequential(nn.Linear(inward, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outward))


def spiral(n):
    t = torch.rand(n, 1) * 6
    return torch.cat([t.cos() * t / 6, t.sin() * t / 6], 1) + 0.02 * torch.randn(n, 2)


nets = nn.ModuleDict({"generator": mlp(4, 2), "critic": mlp(2, 1)})
generator, critic = nets["generator"], nets["critic"]
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=40)
handle = rangewatch.attach(nets, [opt_c, opt_g], scaler=scaler)
for step in range(260):
    real = spiral(64)
    with torch.autocast("cpu", torch.float16):
        fake = generator(torch.randn(64, 4))
        difference = critic(fake.detach()).float().mean() - critic(real).float().mean()
    mix = torch.rand(64, 1)
    between = (mix * real + (1 - mix) * fake.detach().float()).requires_grad_()
    with torch.autocast("cpu", torch.float16):
        score = critic(between)
    slope = torch.autograd.grad(scaler.scale(score.float().sum()), between, create_graph=True)[0]  # scaled, and never unscaled
    penalty = 10 * ((slope.norm(dim=1) - 1) ** 2).mean()
    loss = difference + penalty
    opt_c.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt_c)
    with torch.autocast("cpu", torch.float16):
        g_loss = -critic(generator(torch.randn(64, 4))).float().mean()
    opt_g.zero_grad()
    scaler.scale(g_loss).backward()
    scaler.step(opt_g)
    scaler.update()
    if step % 20 == 0 or step < 6 or step == 259:
        print(step, loss.item(), "penalty", penalty.item(), "generator", g_loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item(), g_loss=g_loss.item())
handle.detach()
